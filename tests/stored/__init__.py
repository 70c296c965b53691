"""Run directories of earlier versions, which every later version opens."""
