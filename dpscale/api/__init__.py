"""The Python interface that `import dpscale` exports: run a job, open a release."""
