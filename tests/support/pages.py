"""Checks of pages in a browser: their fit to a window, and the contrast of their texts."""

from __future__ import annotations

from typing import Any

_CONTRASTS = """
const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
function rgba(color) {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = color;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
}
function luminance([r, g, b]) {
  const [x, y, z] = [r, g, b].map(c => (c /= 255) <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
  return .2126 * x + .7152 * y + .0722 * z;
}
function background(e) {
  for (; e; e = e.parentElement) {
    const color = rgba(getComputedStyle(e).backgroundColor);
    if (color[3] > 250) return color;
  }
  return [255, 255, 255];
}
const found = {};
for (const e of document.querySelectorAll("main *")) {
  const has_text = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  if (!has_text || !e.getClientRects().length || e.disabled) continue;
  const ink = luminance(rgba(getComputedStyle(e).color)), paper = luminance(background(e));
  const contrast = (Math.max(ink, paper) + .05) / (Math.min(ink, paper) + .05);
  if (contrast < 4.5) found[`${e.tagName} ${e.className} ${e.textContent.slice(0, 20)}`] = contrast;
}
return found;
"""


def set_width(browser: Any, width: int, scheme: str = "light") -> None:
    """Set the width of the window in pixels (below 600: a phone's) and the preferred color scheme."""
    metrics = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def low_contrasts(browser: Any) -> dict[str, float]:
    """Return the visible texts whose contrast is below 4.5, the WCAG's minimum (success criterion 1.4.3)."""
    found: dict[str, float] = browser.execute_script(_CONTRASTS)
    return found
