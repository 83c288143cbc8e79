"""Tables and pictures drawn from run records alone."""

from fedneighbors.reports._html import save_figures, write_report

__all__ = ["save_figures", "write_report"]
