"""Tables and figures from run records."""

from fedneighbors.reports._html import save_figures, write_report

__all__ = ["save_figures", "write_report"]
