// What is wrong with the page for people who do not see it, see it badly, or have no mouse: a list of sentences.
// After the rules of WCAG 2.2 AA that a program can check.
(() => {
  const problems = [];
  const say = (what, element) => problems.push(`${what}: ${element.outerHTML.slice(0, 120)}`);
  const named = (element) =>
    (element.getAttribute("aria-label") || "").trim() ||
    (element.getAttribute("aria-labelledby") || "").split(/\s+/).filter(Boolean)
      .map((id) => document.getElementById(id)?.textContent || "").join(" ").trim();

  // Structure.
  if (!document.documentElement.lang) problems.push("the page has no language");
  if (!document.title.trim()) problems.push("the page has no title");
  for (const landmark of ["header", "nav", "main", "footer"]) {
    if (document.querySelectorAll(landmark).length !== 1) problems.push(`there is not one ${landmark}`);
  }
  let level = 0;
  for (const heading of document.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    const own = Number(heading.tagName[1]);
    if (own > level + 1) say("a level of headings is left out", heading);
    if (!heading.textContent.trim()) say("a heading is empty", heading);
    level = own;
  }
  if (document.querySelectorAll("h1").length !== 1) problems.push("there is not one h1");
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) problems.push(`id ${id} is there twice`);
  for (const link of document.querySelectorAll("a[href^='#']")) {
    if (!document.getElementById(link.getAttribute("href").slice(1))) say("leads nowhere", link);
  }

  // Names.
  for (const element of document.querySelectorAll("section, nav, table, [role=region]")) {
    if (!named(element)) say("has no name", element);
  }
  for (const link of document.querySelectorAll("a")) if (!link.textContent.trim()) say("a link without words", link);
  for (const drawing of document.querySelectorAll("svg")) {
    if (drawing.getAttribute("role") !== "img" || !drawing.querySelector("title")?.textContent) say("has no name", drawing);
  }
  for (const cell of document.querySelectorAll("th")) if (!["col", "row"].includes(cell.scope)) say("has no scope", cell);
  for (const table of document.querySelectorAll("table")) {
    const columns = table.querySelectorAll("thead th").length;
    for (const row of table.querySelectorAll("tbody tr")) {
      const cells = [...row.children].reduce((sum, cell) => sum + cell.colSpan, 0);
      if (cells !== columns) say("has not as many cells as columns", row);
    }
  }
  for (const element of document.querySelectorAll("[tabindex]")) if (element.tabIndex > 0) say("jumps ahead", element);

  // Contrast.
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const colour = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([red, green, blue]) => {
    const part = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(red) + 0.7152 * part(green) + 0.0722 * part(blue);
  };
  const ground = (element) => {
    for (let here = element; here; here = here.parentElement) {
      const found = colour(getComputedStyle(here).backgroundColor);
      if (found[3] === 255) return found;
      if (found[3] !== 0) say("has a ground that shines through", here);
    }
    return [255, 255, 255, 255];
  };
  const contrast = (one, other) => {
    const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || element.closest("title")) continue;
    const style = getComputedStyle(element);
    const own = colour(element.closest("svg") ? style.fill : style.color);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    const found = contrast(own, ground(element));
    if (found < (large ? 3 : 4.5)) say(`has contrast ${found.toFixed(2)}`, element);
  }
  for (const shape of document.querySelectorAll("rect")) {
    const found = contrast(colour(getComputedStyle(shape).fill), ground(shape));
    if (found < 3) say(`has contrast ${found.toFixed(2)}`, shape);
  }
  return problems;
})()
