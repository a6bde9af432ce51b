"use strict";
// A click on a heading sorts its table by that column; another click turns the order around.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.tabIndex = 0;
    const sort = () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => (row.cells[column] ? row.cells[column].textContent.trim() : "");
      const number = (text) => parseFloat(text.replace(/[≈,\s]/g, "").replace("−", "-"));
      const body = table.tBodies[0];
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        const [m, n] = [number(x), number(y)];
        const order = isNaN(m) || isNaN(n) ? isNaN(m) - isNaN(n) || x.localeCompare(y) : m - n;
        return down ? -order : order;
      });
      body.append(...rows);
    };
    heading.addEventListener("click", sort);
    heading.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        sort();
      }
    });
  });
}
