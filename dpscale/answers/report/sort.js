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
