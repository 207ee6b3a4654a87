// Choosing an option is one click, as in the text world: no button to press after it.
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
});
