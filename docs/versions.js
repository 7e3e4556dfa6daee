// A menu of the published versions. mike lists them in versions.json, beside the folder of each version.
const root = new URL(`${base_url}/../`, location);
const folder = location.pathname.slice(root.pathname.length).split("/")[0];
fetch(new URL("versions.json", root))
  .then((answer) => answer.json())
  .then((versions) => {
    const menu = document.createElement("select");
    menu.ariaLabel = "Version";
    for (const { version, title, aliases } of versions)
      menu.add(new Option(title, version, false, version === folder || aliases.includes(folder)));
    menu.addEventListener("change", () => location.assign(new URL(`${menu.value}/`, root)));
    document.querySelector(".navbar-brand").after(menu);
  });
