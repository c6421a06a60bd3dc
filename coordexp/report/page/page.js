"use strict";
// The page reads and its boxes switch without this; it adds the keys of the gallery.
(() => {
  const cards = [...document.querySelectorAll(".gallery > li")];
  const boxes = [...document.querySelectorAll(".toggles input[data-group]")];
  const linkOf = (card) => card.querySelector(".picture");
  const large = () => cards.find((card) => card.matches(":target"));
  const focus = (card) => {
    linkOf(card).focus({ preventScroll: true });
    card.scrollIntoView({ block: "nearest" });
  };
  const open = (card) => {
    location.hash = "#" + card.id;
    focus(card); // following a fragment takes the focus away
  };
  const close = (card) => {
    location.hash = "#gallery-list";
    history.replaceState(null, "", location.pathname + location.search);
    focus(card);
  };
  const go = (index) => {
    const card = cards[Math.min(Math.max(index, 0), cards.length - 1)];
    if (large()) open(card);
    else focus(card);
  };
  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const index = cards.findIndex((card) => card.contains(document.activeElement));
    if (index < 0 && !document.activeElement.closest(".toggles")) return;
    const target = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: cards.length - 1 }[event.key];
    if (target !== undefined && index >= 0) go(target);
    else if (event.key === "Escape" && large()) close(large());
    else if (event.key === "0") document.querySelector("#show-gt").click();
    else if (/^[1-9]$/.test(event.key) && boxes[event.key - 1]) boxes[event.key - 1].click();
    else return;
    event.preventDefault();
  });
  for (const card of cards) {
    linkOf(card).addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      if (card === large()) close(card);
      else open(card);
    });
  }
})();
