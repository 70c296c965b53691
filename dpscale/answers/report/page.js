for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const sort = () => {
    const place = heads.findIndex((head) => head.hasAttribute("aria-sort")), head = heads[place];
    if (!head) return;
    const key = (row) => row.cells[place].dataset.key ?? row.cells[place].textContent;
    const order = (a, b) => key(a).localeCompare(key(b), "en", { numeric: !head.classList.contains("n") });
    const number = (a, b) => Number(key(a)) - Number(key(b));
    const rows = [...table.tBodies[0].rows].sort(head.classList.contains("n") ? number : order);
    table.tBodies[0].append(...(head.getAttribute("aria-sort") === "descending" ? rows.reverse() : rows));
  };
  for (const head of heads.filter((one) => one.tagName === "TH")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      sort();
    });
  }
  table.addEventListener("rows", sort);
}

for (const table of document.querySelectorAll("table.searched")) {
  const tools = document.createElement("div"), label = document.createElement("label"), input = document.createElement("input");
  const found = document.createElement("output");
  input.type = "search";
  label.className = "search";
  label.append("Search ", input, " ", found);
  tools.className = "tools";
  const filters = [...table.tHead.rows[0].cells].flatMap((head, place) => {
    const values = JSON.parse(head.dataset.filter ?? "[]");
    if (values.length < 2) return [];
    const own = document.createElement("label"), select = document.createElement("select");
    own.className = "search";
    select.append(...["all", ...values].map((value) => new Option(value)));
    own.append(`${head.textContent} `, select);
    tools.append(own);
    select.addEventListener("input", () => change());
    return [(row) => !select.selectedIndex || row.cells[place].textContent === values[select.selectedIndex - 1]];
  });
  tools.append(label);
  const show = () => {
    const words = input.value.toLowerCase().split(/[\s,×]+/).filter(Boolean), rows = [...table.tBodies[0].rows];
    const fits = (row) => words.every((word) => row.textContent.toLowerCase().includes(word)) && filters.every((one) => one(row));
    for (const row of rows) row.hidden = !fits(row);
    found.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  };
  const change = () => { show(); table.dispatchEvent(new Event("search")); };
  input.addEventListener("input", change);
  table.addEventListener("rows", show);
  show();
  table.parentElement.before(tools);
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
