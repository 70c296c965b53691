"""A report section with the largest one-way count of the release."""

TEMPLATE = """<h2 id="largest">Largest count</h2>
<p>{{ name }}: {{ count | figure }}</p>
"""


def values(run):
    from dpscale.runs.estimates import estimates_of

    def largest():
        name = run.domain.names[0]
        return name, float(estimates_of(run).marginal((name,)).max())

    return {"name": lambda: largest()[0], "count": lambda: largest()[1]}
