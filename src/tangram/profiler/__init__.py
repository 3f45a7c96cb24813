"""Times the real layers of a model, and the links of a cluster, on the device it runs on.

The only room that imports torch (the extra ``train``); only ``tangram profile`` imports its modules that do.
"""
