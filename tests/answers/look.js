(() => {
  const parse = (text) => (text.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const light = (c) => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const luminance = (c) => 0.2126 * light(c[0]) + 0.7152 * light(c[1]) + 0.0722 * light(c[2]);
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (text) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = "#000"; canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    const d = canvas.getImageData(0, 0, 1, 1).data; return [d[0], d[1], d[2], d[3] / 255]; };
  const backdrop = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((under, over) => under.map((c, i) => c * (1 - over[3]) + over[i] * over[3]), [255, 255, 255]);
  };
  const contrast = (a, b) => { const [x, y] = [luminance(a), luminance(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || ["SCRIPT", "STYLE"].includes(node.tagName) || node.closest("clipPath, defs")) continue;
    const box = node.getBoundingClientRect();
    if (!box.width || !box.height || box.right < 0) continue;
    const svg = node.closest("svg"), style = getComputedStyle(node);
    const ratio = contrast(rgba(svg ? style.fill : style.color), backdrop(svg ? svg.parentElement : node));
    if (ratio < 4.5) faint.push([walker.currentNode.textContent.trim().slice(0, 30), Number(ratio.toFixed(2))]);
  }
  const headings = [...document.querySelectorAll("h1,h2,h3,h4")].map((h) => Number(h.tagName[1]));
  const anchors = [...document.querySelectorAll("a[href^='#']")].filter((a) => !document.getElementById(a.hash.slice(1))).map((a) => a.hash);
  return {
    faint, headings, anchors,
    wider: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    scripts: [...document.querySelectorAll("script[src],link[href],img[src^='http']")].length,
    buttons: document.querySelectorAll("th button").length,
    ids: [...document.querySelectorAll("h2[id]")].map((h) => h.id),
  };
})()
