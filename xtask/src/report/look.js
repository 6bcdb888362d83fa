// Inspects a page in a frame of each width, and writes the findings into the outer page. Definitions of
// PAGE, WIDTHS and PICTURES precede this.
"use strict";

function frame(width) {
  return new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.style.cssText = `width:${width}px;height:900px;border:0`;
    frame.addEventListener("load", () => done(frame));
    frame.srcdoc = PAGE;
    document.body.append(frame);
  });
}

// Both colors are red, green, blue from 0 to 255.
function contrast(one, other) {
  const light = (color) => {
    const [r, g, b] = color.map((part) => {
      const s = part / 255;
      return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [a, b] = [light(one), light(other)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}

function rgb(text) {
  return text.match(/\d+(\.\d+)?/g).slice(0, 3).map(Number);
}

function meets(a, b) {
  const slack = 0.5;
  return a.left < b.right - slack && b.left < a.right - slack && a.top < b.bottom - slack && b.top < a.bottom - slack;
}

function labels(svg, fault) {
  const box = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")].filter((text) => !text.classList.contains("on"));
  const boxes = texts.map((text) => text.getBoundingClientRect());
  boxes.forEach((own, index) => {
    const text = texts[index].textContent;
    if (own.left < box.left - 1 || own.right > box.right + 1 || own.top < box.top - 1 || own.bottom > box.bottom + 1) {
      fault(`"${text}" is cut`);
    }
    for (let other = index + 1; other < boxes.length; other += 1) {
      if (meets(own, boxes[other])) fault(`"${text}" is over "${texts[other].textContent}"`);
    }
  });
}

function figure(element, faults) {
  const title = element.querySelector("figcaption").textContent;
  const fault = (text) => faults.push(`${title}: ${text}`);
  const svg = element.querySelector(":scope > svg");
  if (!svg || svg.querySelector("title").textContent !== title || !svg.querySelector("desc").textContent) {
    fault("no picture with a title and a description");
    return null;
  }
  labels(svg, fault);
  const rows = element.querySelectorAll("details tbody tr").length;
  if (rows === 0) fault("no data");
  if (!element.querySelector('details a[download][href^="data:text/csv"]')) fault("no data to download");
  const shapes = [...svg.querySelectorAll("path.l, rect.bar")];
  if (!shapes.some((shape) => shape.getBoundingClientRect().width > 0)) fault("nothing is drawn");
  return { title, rows, shapes: shapes.length, marks: svg.querySelectorAll("path.m").length };
}

function colors(page, faults) {
  const style = (element) => page.defaultView.getComputedStyle(element);
  const paper = rgb(style(page.body).backgroundColor);
  const least = (element, on, wanted, property) => {
    const found = contrast(rgb(style(element)[property]), on);
    if (found < wanted) faults.push(`${element.className.baseVal ?? element.tagName}: contrast ${found.toFixed(2)}`);
  };
  least(page.body, paper, 7, "color");
  page.querySelectorAll("a, summary, .note, .hint, dt").forEach((element) => least(element, paper, 4.5, "color"));
  page.querySelectorAll("figure").forEach((figure) => {
    const card = rgb(style(figure).backgroundColor);
    figure.querySelectorAll("path.l").forEach((line) => least(line, card, 2.8, "stroke"));
    figure.querySelectorAll("rect.bar").forEach((bar) => least(bar, card, 2.8, "fill"));
    figure.querySelectorAll("svg text:not(.on)").forEach((text) => least(text, card, 7, "fill"));
  });
  return paper;
}

function table(section) {
  const all = [...section.querySelectorAll(":scope > details table")].pop();
  const cells = (row) => [...row.children].map((cell) => cell.textContent.trim());
  return { head: cells(all.tHead.rows[0]), rows: [...all.tBodies[0].rows].map(cells) };
}

function read(page, faults) {
  const foreign = page.querySelectorAll("script, img, iframe, object, link, base, [onload], [onerror], [onclick]");
  foreign.forEach((element) => faults.push(`there is a ${element.outerHTML.slice(0, 80)}`));
  const sections = [...page.querySelectorAll("main > section")].map((section) => ({
    name: section.querySelector("h2").textContent,
    ratios: [...section.querySelectorAll(":scope > .scroll tbody tr")].length,
    notes: [...section.querySelectorAll(".note")].map((note) => note.textContent),
    figures: [...section.querySelectorAll("figure")].map((each) => figure(each, faults)).filter(Boolean),
    all: table(section),
  }));
  return { title: page.title, paper: colors(page, faults), sections };
}

function picture(url) {
  return new Promise((done, fail) => {
    const image = new Image();
    image.addEventListener("error", () => fail(new Error(`no picture ${url}`)));
    image.addEventListener("load", () => {
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [image.width, image.height];
      const context = canvas.getContext("2d");
      context.drawImage(image, 0, 0);
      const { data } = context.getImageData(0, 0, image.width, image.height);
      let light = 0;
      for (let at = 0; at < data.length; at += 4) light += (data[at] + data[at + 1] + data[at + 2]) / 3 / 255;
      done({ corner: [...data.slice(0, 3)], mean: light / (data.length / 4) });
    });
    image.src = url;
  });
}

async function look() {
  const found = { faults: [], widths: [], pictures: [] };
  for (const width of WIDTHS) {
    const page = (await frame(width)).contentDocument;
    for (const details of page.querySelectorAll("details")) details.open = true;
    const { scrollWidth, clientWidth } = page.documentElement;
    found.widths.push({ width, scrollWidth, clientWidth });
    const fetched = page.defaultView.performance.getEntriesByType("resource");
    fetched.forEach((entry) => found.faults.push(`fetched ${entry.name}`));
    const faults = [];
    found.read = read(page, faults);
    found.faults.push(...faults.map((text) => `${width} px: ${text}`));
  }
  for (const url of PICTURES) found.pictures.push(await picture(url));
  return found;
}

look()
  .catch((error) => ({ failure: String(error.stack ?? error) }))
  .then((found) => {
    const out = document.createElement("pre");
    out.id = "found";
    // Nothing that HTML writes in another way.
    out.textContent = JSON.stringify(found).replace(/[<>&\u00a0]/g, (c) => `\\u00${c.charCodeAt(0).toString(16)}`);
    document.body.replaceChildren(out);
  });
