"use strict";
// Makes the tables sortable and searchable. Without it they can be read all the same.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const rows = [...body.rows];

  const key = (row, at) => {
    const cell = row.cells[at];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b || 0; // equal infinities: NaN
    if (typeof a !== typeof b) return typeof a === "number" ? 1 : -1;
    return a.localeCompare(b, "en", { numeric: true });
  };
  const sort = (at) => {
    const numeric = rows.some((row) => "value" in row.cells[at].dataset);
    const now = heads[at].getAttribute("aria-sort");
    // Of numbers the largest matter most, so they come first.
    const next = now === null ? (numeric ? "descending" : "ascending")
      : now === "ascending" ? "descending" : "ascending";
    for (const head of heads) head.removeAttribute("aria-sort");
    heads[at].setAttribute("aria-sort", next);
    const sign = next === "ascending" ? 1 : -1;
    rows.sort((a, b) => sign * compare(key(a, at), key(b, at)));
    body.append(...rows);
  };
  heads.forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sort(at));
    head.replaceChildren(button);
  });

  const form = document.createElement("div");
  form.className = "filter";
  const label = document.createElement("label");
  label.htmlFor = `${table.id}-filter`;
  label.textContent = "Rows that contain";
  const input = document.createElement("input");
  input.type = "search";
  input.id = label.htmlFor;
  const told = document.createElement("output");
  told.setAttribute("for", input.id);
  const text = (row) => [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
  const texts = new Map(rows.map((row) => [row, text(row)]));
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase().trim().replace(/\s+/g, " ");
    let left = 0;
    for (const row of rows) {
      row.hidden = !texts.get(row).includes(wanted);
      left += !row.hidden;
    }
    told.textContent = wanted ? `${left} of ${rows.length} rows` : "";
  });
  form.append(label, input, told);
  table.parentElement.before(form);
}
