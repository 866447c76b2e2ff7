"""An independent fp64 model of the Kimi-Linear / K3 / K3.1 family in numpy, written from the formulas.

It shares no code and no arithmetic with the engine: KDA runs in its recurrent form, MLA unabsorbed, MXFP4 through its own
decoder. Only the files' formats are common.
"""
