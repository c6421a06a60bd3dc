"""Reports on finished and running experiments: what the runs say, with intervals, as tables, plots and one HTML page.

    MLflow       study/from_mlflow.py   --+
                                          +-- study/load.py --> ExperimentData, one RunRecord a run
    run folders  study/from_folders.py  --+                  |
                                                             |  make_study.py: one function of StudyInputs for each
                                                             v  part; a file that is wrong costs its part and is said
    statistics/, detection/  ------------------------->  Study: every number of the report
                                                             |
                        +-----------------+------------------+----------------+
                        v                 v                  v                v
                 text/ (terminal,   charts/ (PNG, SVG,   page/ (HTML)   published/ (a folder
                 Markdown, JSON,    and of the page)                    to commit, and its check)
                 CSV, LaTeX)

A table that is added is a file of ``parts/``: what computes it and what renders it stand together there.
"""
