"""Airflow needs a home before it is imported: one that lasts as long as the tests."""

from __future__ import annotations

import os
import tempfile

os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="headwater-airflow-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
