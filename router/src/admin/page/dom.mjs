// Elements. Whatever is shown is set as text; nothing here takes markup.

/**
 * An element with properties, attributes and children. Text among the children becomes a text node. `on` has listeners,
 * `data` data attributes; a name with a dash, or `role`, is an attribute, any other a property.
 */
export function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
    } else if (name === "data") {
      Object.assign(made.dataset, value);
    } else if (name.includes("-") || name === "role" || name === "for" || name === "colspan") {
      made.setAttribute(name, value);
    } else {
      made[name] = value;
    }
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Sets the text of an element, if it is another one. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Replaces the children, unless what they are made of is the same as last time. */
export function replaceIfNew(element, key, make) {
  const text = JSON.stringify(key);
  if (element.madeOf === text) return;
  element.madeOf = text;
  element.replaceChildren(...make());
}

/** Says something to those who do not see it change. */
export function announce(text) {
  setText(document.getElementById("said"), text);
}

/** Whether the page is dark. */
export function isDark() {
  const theme = document.documentElement.dataset.theme;
  if (theme === "dark" || theme === "light") return theme === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/** A colour of the style sheet. */
export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
