// The figures of one answer while it comes, and the wake: one column per pass of the model, one block per token.

const STEP = 5;
const WIDTH = 240;
const HEIGHT = 44;
const SVG = "http://www.w3.org/2000/svg";

export class Gauge {
  constructor({ speed, acceptance, wake }) {
    this.elements = { speed, acceptance, wake };
    this.start();
  }

  start() {
    this.tokens = 0;
    this.rounds = 0;
    this.firstTokens = 0;
    this.began = null;
    this.ended = null;
    this.elements.wake.replaceChildren();
    this.elements.wake.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.show();
  }

  // What one chunk brought: for each token whether it was drafted. A pass ends with a token of the model's own.
  add(drafted) {
    if (!drafted.length) return;
    this.ended = performance.now();
    if (this.began === null) {
      this.began = this.ended;
      this.firstTokens = drafted.length;
    }
    this.tokens += drafted.length;
    let column = [];
    for (const flag of drafted) {
      column.push(flag);
      if (!flag) {
        this.draw(column);
        column = [];
      }
    }
    if (column.length) this.draw(column); // the text ended within a draft
    this.show();
  }

  // The server's own count, which is the last word.
  settle({ rounds }) {
    if (rounds) this.rounds = rounds;
    this.show();
  }

  // As the rest of the project counts it: tokens after the first delivery over the seconds after it.
  get tokensPerSecond() {
    const seconds = (this.ended - this.began) / 1000;
    return seconds > 0 ? (this.tokens - this.firstTokens) / seconds : null;
  }

  get meanAcceptanceLength() {
    return this.rounds ? this.tokens / this.rounds : null;
  }

  show() {
    this.elements.speed.textContent = figure(this.tokensPerSecond, 1);
    this.elements.acceptance.textContent = figure(this.meanAcceptanceLength, 2);
  }

  draw(column) {
    const { wake } = this.elements;
    const x = this.rounds++ * STEP;
    const group = document.createElementNS(SVG, "g");
    const size = Math.min(4, HEIGHT / column.length - 1);
    column.forEach((flag, place) => {
      const block = document.createElementNS(SVG, "rect");
      block.setAttribute("class", flag ? "drafted" : "own");
      block.setAttribute("x", x);
      block.setAttribute("y", HEIGHT - (column.length - place) * (size + 1));
      block.setAttribute("width", STEP - 1);
      block.setAttribute("height", size);
      group.append(block);
    });
    wake.append(group);
    if (wake.childElementCount > WIDTH / STEP) wake.firstElementChild.remove();
    wake.setAttribute("viewBox", `${Math.max(0, x + STEP - WIDTH)} 0 ${WIDTH} ${HEIGHT}`);
  }
}

export function figure(value, digits) {
  return value === null ? "" : value.toFixed(digits);
}
