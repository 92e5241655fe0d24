// Headless Chromium, and pages in it that are photographed when a test fails.

import assert from "node:assert/strict";
import { mkdir, writeFile } from "node:fs/promises";
import { delimiter, join } from "node:path";
import { accessSync, constants } from "node:fs";
import { test } from "node:test";
import puppeteer from "puppeteer-core";
import { TARGET } from "./service.mjs";

export const PATIENCE_MS = 60_000;
export const DESK = { width: 1280, height: 860 };
export const PHONE = { width: 360, height: 740, isMobile: true, hasTouch: true, deviceScaleFactor: 2 };

function executable() {
  const names = ["chromium", "chromium-browser", "google-chrome"];
  const paths = (process.env.PATH ?? "").split(delimiter).flatMap((directory) => names.map((name) => join(directory, name)));
  const found = paths.find((path) => { try { accessSync(path, constants.X_OK); return true; } catch { return false; } });
  assert(found, "there is no chromium on the PATH: install the package chromium");
  return found;
}

export function launch() {
  // The tests are root in a container, where Chromium's own sandbox has no rights to be set up.
  return puppeteer.launch({ executablePath: executable(), args: ["--no-sandbox", "--disable-dev-shm-usage", "--lang=en-GB"] });
}

// A page of its own session. What the browser complains about is kept; answers with an error status are not meant.
export async function open(browser, viewport = DESK) {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  page.complaints = [];
  page.on("pageerror", (error) => page.complaints.push(`${error}`));
  page.on("console", (message) => {
    const harmless = /^Failed to load resource/.test(message.text());
    if (message.type() === "error" && !harmless) page.complaints.push(message.text());
  });
  await page.setViewport(viewport);
  return page;
}

// A test with a page; the page is kept as a picture and as text when it fails.
export function story(name, browser, work, viewport = DESK) {
  test(name, { timeout: 5 * PATIENCE_MS }, async () => {
    const page = await open(browser(), viewport);
    try {
      await work(page);
      assert.deepEqual(page.complaints, []);
    } catch (error) {
      const directory = join(TARGET, "screenshots");
      const file = join(directory, name.replaceAll(/\W+/g, "-"));
      await mkdir(directory, { recursive: true });
      await page.screenshot({ path: `${file}.png`, fullPage: true }).catch(() => {});
      const text = await page.evaluate(() => document.body.innerText).catch(String);
      await writeFile(`${file}.txt`, [page.url(), ...page.complaints, text].join("\n"));
      console.error(`${name}: see ${file}.png`);
      throw error;
    } finally {
      await page.browserContext().close();
    }
  });
}

// Waits until an element has such a text.
export async function shows(page, selector, text) {
  const such = (selector, source, flags) => [...document.querySelectorAll(selector)].some((node) => new RegExp(source, flags).test(node.innerText ?? node.textContent));
  const form = text instanceof RegExp ? text : new RegExp(text.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  try {
    await page.waitForFunction(such, {}, selector, form.source, form.flags);
  } catch (error) {
    const seen = await page.$$eval(selector, (nodes) => nodes.map((node) => node.innerText));
    throw new Error(`${selector} does not show ${form}: ${JSON.stringify(seen)}`, { cause: error });
  }
}

export async function fill(page, selector, text) {
  await page.waitForSelector(selector, { visible: true });
  await page.$eval(selector, (node) => { node.focus(); node.select?.(); });
  await page.keyboard.press("Backspace");
  if (text) await page.keyboard.type(text);
}

// Clicks what stands there, wherever it has been scrolled to.
export async function click(page, selector) {
  const node = await page.waitForSelector(`${selector}:not(:disabled)`, { visible: true });
  await node.evaluate((node) => node.scrollIntoView({ block: "center" }));
  await node.click();
}
