"""Models and trainings on disk: saved, sealed, and gone on from."""
