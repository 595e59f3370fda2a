"""The benchmark of saving asks Linux for what only Linux tells."""

import sys

collect_ignore = [] if sys.platform == "linux" else ["test_measuring.py", "test_report.py"]
