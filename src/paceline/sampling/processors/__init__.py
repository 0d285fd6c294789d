"""Changes to logits that depend on a row's history: bans, bias, forcing, penalties, DRY (spec 13.1, steps 1 and 2).

``settings`` holds what a request asks for, ``chain`` one row's state and the application to whole windows.
"""
