"""The variables by which the process that ranks are forked from is told what to prepare."""

MODULES = "DDP_TEMPLATE_MODULES"  # path of a file that will name the modules to import
ALL_DATA = "DDP_TEMPLATE_ALL_DATA"  # 1: programs get all of their data
