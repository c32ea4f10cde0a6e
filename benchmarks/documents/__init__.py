"""Numbers in documents: measured, kept as records, and written between markers.

    kept         records: plain numbers with command, version, date, seed and trials
    words        numbers, tables and comparisons as text
    blocks       measurements, blocks and the markers of a page
    reproduced, lookahead, ...    one module for each source of numbers or page
    pages        all of them

`python -m benchmarks.documents` measures and writes; docs/records/README.md says how numbers get
into documents.
"""
