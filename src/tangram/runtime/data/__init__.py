"""What is trained on: tokenised files, cut into samples, in an order that no plan changes. No torch."""
