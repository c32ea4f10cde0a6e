// Elements of the document, and the buttons by which the operator chooses what is shown.
//
// Text enters the document here, through textContent alone, and only where it differs, so that
// focus, selection and scrolling stay.

import { whole } from "./words.js";

const MOST = { arms: [12, 4], agents: [15, 6], rounds: [10, 5] }; // shown at first: desktop, phone

export const $ = (id) => document.getElementById(id);
const phone = window.matchMedia("(max-width: 40rem)");
export const most = (what) => MOST[what][phone.matches ? 1 : 0];

/** Set text only where it differs. */
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function mark(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** An HTML element; text is text. */
export function make(tag, kind = "", text = "") {
  const node = document.createElement(tag);
  if (kind) node.className = kind;
  if (text) node.textContent = text;
  return node;
}

/** An SVG element with its attributes and children. */
export function draw(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** The key of a line in a legend: a piece of it. */
export const key = (kind, width = 24) =>
  draw(
    "svg",
    { class: "key", viewBox: `0 0 ${width} 12`, "aria-hidden": "true" },
    draw("path", { class: kind, d: `M1 6h${width - 2}` }),
  );

// ---- What the operator chose -------------------------------------------------------------------

/** What the operator chose on the page. */
export const chosen = {
  time: "slots",
  order: "number",
  agents: "all",
  allArms: false,
  allAgents: false,
  allRounds: false,
};

let again = () => {}; // draws the page once more

/** Have the page drawn by `act` after every choice, and when the window becomes narrow or wide. */
export function onChoice(act) {
  again = act;
  phone.addEventListener("change", act);
  for (const [id, what] of Object.entries({
    "arms-more": "allArms",
    "agents-more": "allAgents",
    "rounds-more": "allRounds",
  })) {
    $(id).addEventListener("click", () => {
      chosen[what] = !chosen[what];
      again();
    });
  }
}

export function offerMore(button, total, few, all, words) {
  button.hidden = total <= few;
  put(button, all ? words(whole(few), false) : words(whole(total), true));
  mark(button, "aria-expanded", String(all));
}

/** Buttons of which one is pressed: {name: words}; a press redraws the page. */
export function showChips(group, choice, words) {
  for (const [name, text] of Object.entries(words)) {
    const id = `${group.id}-${name}`;
    if (!$(id)) {
      const chip = make("button");
      chip.id = id;
      chip.type = "button";
      chip.addEventListener("click", () => {
        chosen[choice] = name;
        again();
      });
      group.append(chip);
    }
    $(id).hidden = text === null;
    if (text !== null) put($(id), text);
    mark($(id), "aria-pressed", String(chosen[choice] === name));
  }
}
