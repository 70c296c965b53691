for (const table of document.querySelectorAll("table[data-parts]")) {
  const parts = Number(table.dataset.parts), button = document.createElement("button"), said = document.createElement("p");
  let next = 1, loading = Promise.resolve();
  globalThis.addRows = (rows) => table.tBodies[0].insertAdjacentHTML("beforeend", rows);
  const load = () => new Promise((done) => {
    if (next > parts) return done();
    const script = document.createElement("script");
    script.src = new URL(`${table.dataset.part}${next}.js`, location.href);
    script.onload = () => { next += 1; button.hidden = next > parts; done(); };
    script.onerror = () => { said.textContent = "A part of the rows could not be read."; next = parts + 1; done(); };
    document.head.append(script);
  });
  const all = async () => {
    for (let part = next; part <= parts; part += 1) await load();
    table.dispatchEvent(new Event("rows"));
  };
  button.type = "button";
  button.className = "more";
  button.textContent = "More rows";
  said.setAttribute("role", "status");
  button.addEventListener("click", () => { loading = loading.then(load).then(() => table.dispatchEvent(new Event("rows"))); });
  table.parentElement.after(button, said);
  const every = () => { loading = loading.then(all); };
  table.tHead.addEventListener("click", every, { once: true });
  table.addEventListener("search", every, { once: true });
}
