// The scale of heat: lightness rises evenly while the hue goes from violet over green to yellow, so that it can be read
// without colour too. Computed in OKLCH, which is even to the eye.

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/** sRGB (0 to 1 each) of a colour in OKLCH, as Björn Ottosson defines it; `null` outside of what a screen shows. */
export function fromOklch(lightness, chroma, hueDegrees) {
  const hue = (hueDegrees * Math.PI) / 180;
  const [a, b] = [chroma * Math.cos(hue), chroma * Math.sin(hue)];
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  if (linear.some((part) => part < -0.0005 || part > 1.0005)) return null;
  return linear.map((part) => gamma(clamp(part, 0, 1)));
}

const gamma = (part) => (part <= 0.0031308 ? 12.92 * part : 1.055 * part ** (1 / 2.4) - 0.055);
const ungamma = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);

/** Relative luminance, as WCAG defines it. */
export function luminance(rgb) {
  const [r, g, b] = rgb.map(ungamma);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** The contrast of two colours, as WCAG defines it: 1 to 21. */
export function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

function step(part) {
  const lightness = 0.28 + 0.62 * part;
  const hue = 305 - 200 * part;
  // As much colour as a screen shows there, up to a limit.
  for (let chroma = 0.15; chroma > 0; chroma -= 0.005) {
    const rgb = fromOklch(lightness, chroma, hue);
    if (rgb) return rgb;
  }
  return [lightness, lightness, lightness];
}

const STEPS = 256;
const SCALE = Array.from({ length: STEPS }, (_, at) => step(at / (STEPS - 1)));

/**
 * The colour of a part from 0 to 1, as sRGB. What is more stands out from the background: it is lighter on a dark page
 * and darker on a light one.
 */
export function heat(part, dark) {
  const at = Math.round(clamp(part, 0, 1) * (STEPS - 1));
  return SCALE[dark ? at : STEPS - 1 - at];
}

/** A colour for CSS and canvas. */
export function css(rgb) {
  return `rgb(${rgb.map((part) => Math.round(part * 255)).join(" ")})`;
}

/** Where a value lies between 0 and the most, by its logarithm: heat spans orders of magnitude. `unit` is what is small. */
export function part(value, most, unit) {
  if (!(value > 0) || !(most > 0)) return 0;
  return clamp(Math.log1p(value / unit) / Math.log1p(most / unit), 0, 1);
}
