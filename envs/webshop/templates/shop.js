// Choosing an option submits its form, so that it takes one click as in the text environment.
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
});
