// Shows each row of a table that is too wide for a narrow screen as a list of its cells, each with the head of its column.
function stackWideTables() {
  const isNarrow = window.matchMedia("(max-width: 46em)").matches;
  for (const table of document.querySelectorAll("table.docutils")) {
    table.classList.remove("stacked");
    const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim());
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, column) => (cell.dataset.head = heads[column]));
    }
    table.classList.toggle("stacked", isNarrow && table.scrollWidth > table.parentElement.clientWidth);
  }
}

window.addEventListener("load", stackWideTables);
window.addEventListener("resize", stackWideTables);
