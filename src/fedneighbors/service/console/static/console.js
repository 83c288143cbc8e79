"use strict";

// Copy the lines of a search, or select them where the clipboard may not be used.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const lines = button.closest("figure").querySelector("pre");
  try {
    await navigator.clipboard.writeText(lines.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(lines);
    button.textContent = "Selected";
  }
});

// Show the progress of a search at each of its events; the part's reply to the last loads the result.
const part = document.querySelector("[data-events]");
if (part) {
  const events = new EventSource(part.dataset.events);
  const show = () => htmx.trigger(part, "progress");
  for (const name of ["round", "certified", "done"]) events.addEventListener(name, show);
  events.addEventListener("done", () => events.close());
}

// Read the numbers of a vector from a file, here in the browser.
document.addEventListener("change", async (event) => {
  const target = document.getElementById(event.target.dataset.into);
  if (target && event.target.files.length) target.value = await event.target.files[0].text();
});

// Set the point of a query by a click on a map.
document.addEventListener("click", (event) => {
  const map = event.target.closest("figure.map svg");
  const longitude = document.getElementById("query.longitude");
  if (!map || !longitude) return;
  const box = map.getBoundingClientRect();
  const { west, east, south, north } = map.dataset;
  const x = (event.clientX - box.left) / box.width;
  const y = (event.clientY - box.top) / box.height;
  const degrees = Number(west) + x * (east - west);
  const details = longitude.closest("details");
  if (details) details.open = true;
  longitude.value = (((((degrees + 180) % 360) + 360) % 360) - 180).toFixed(5);
  document.getElementById("query.latitude").value = (Number(north) - y * (north - south)).toFixed(5);
  const here = map.querySelector(".here");
  here.setAttribute("transform", `translate(${100 * x} ${map.viewBox.baseVal.height * y})`);
  here.setAttribute("visibility", "visible");
});
