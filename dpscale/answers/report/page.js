for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[place].dataset.key ?? row.cells[place].textContent;
      const order = (a, b) => key(a).localeCompare(key(b), "en", { numeric: !head.classList.contains("n") });
      const number = (a, b) => Number(key(a)) - Number(key(b));
      const rows = [...table.tBodies[0].rows].sort(head.classList.contains("n") ? number : order);
      table.tBodies[0].append(...(down ? rows.reverse() : rows));
    });
  });
}

for (const table of document.querySelectorAll("table.searched")) {
  const label = document.createElement("label"), input = document.createElement("input");
  const found = document.createElement("output"), rows = [...table.tBodies[0].rows];
  input.type = "search";
  label.className = "search";
  label.append("Search ", input, " ", found);
  const show = () => {
    const words = input.value.toLowerCase().split(/[\s,×]+/).filter(Boolean);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    found.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  };
  input.addEventListener("input", show);
  show();
  table.parentElement.before(label);
}

const mark = () => { for (const one of document.querySelectorAll(".wide")) one.classList.toggle("cut", one.scrollWidth > one.clientWidth + 1); };
addEventListener("resize", mark);
addEventListener("toggle", mark, true);
mark();

const archive = document.getElementById("archive");
if (archive && "DecompressionStream" in window) {
  let tables;
  const unpack = async () => {
    const bytes = Uint8Array.from(atob(archive.textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return (await new Response(stream).text()).split("\f");
  };
  for (const button of document.querySelectorAll("button.csv")) {
    const cells = button.closest("tr")?.cells;
    if (cells) button.setAttribute("aria-label", `CSV of ${cells[1].textContent} ${cells[0].textContent}`);
    button.hidden = false;
  }
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.csv");
    if (!button) return;
    tables ??= unpack();
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([(await tables)[button.dataset.csv]], { type: "text/csv" }));
    link.download = `${button.getAttribute("aria-label").replace("CSV of ", "").replace(/\W+/g, "-")}.csv`;
    link.click();
  });
}

const folds = () => [...document.querySelectorAll("details:not([open])")];
let opened = [];
addEventListener("beforeprint", () => { opened = folds(); for (const one of opened) one.open = true; });
addEventListener("afterprint", () => { for (const one of opened) one.open = false; });
