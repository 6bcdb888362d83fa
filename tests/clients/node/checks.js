// Shared by the Node client programs: the servers' addresses and counted assertions.
'use strict'

const { isDeepStrictEqual, inspect } = require('node:util')

// The clients call interfaces that Node has since deprecated.
process.noDeprecation = true

const address = `${process.env.SERVER_HOST}:${process.env.SERVER_PORT}`

// Both are below the 1 MiB item limit; the larger one leaves room only for the item's overhead.
const binary = Buffer.from(Array.from({ length: 256 }, (_, n) => n))
const large = Buffer.concat(Array(3900).fill(binary))
const nearLimit = Buffer.alloc(1024 * 1024 - 1024, 'n')
const tooLarge = Buffer.alloc(1024 * 1024 + 1, 't')

// Two seconds is the shortest time to live that cannot end at the very next tick of the clock.
const shortTtlS = 2

let passed = 0

function equal(what, actual, expected) {
  if (!isDeepStrictEqual(actual, expected)) {
    fail(`${what}: expected ${brief(expected)}, got ${brief(actual)}`)
  }
  passed += 1
}

function holds(what, condition) {
  equal(what, Boolean(condition), true)
}

/** Checks that a promise fails with a message that contains `text`. */
async function rejects(what, text, promise) {
  let result
  try {
    result = await promise
  } catch (error) {
    if (!error.message.includes(text)) fail(`${what}: expected ${text}, got ${error.message}`)
    passed += 1
    return
  }
  fail(`${what}: expected an error, got ${brief(result)}`)
}

/** Polls until a condition holds that a server's background threads establish. */
async function eventually(what, condition, seconds = 5) {
  const deadline = Date.now() + seconds * 1000
  while (!(await condition()) && Date.now() < deadline) await sleep(0.05)
  holds(what, await condition())
}

function sleep(seconds) {
  return new Promise((resolve) => setTimeout(resolve, seconds * 1000))
}

function waitForExpiry() {
  return sleep(shortTtlS + 0.2)
}

/** Runs a client's checks to the end; a callback that is never called is a failure too. */
function run(client, main) {
  let finished = false
  process.on('exit', (code) => {
    if (!finished && code === 0) fail('an answer never came')
  })
  main().then(() => {
    finished = true
    console.log(`${client} ${require(`${client}/package.json`).version}: ${passed} checks passed`)
    process.exit(0)
  }, (error) => fail(error?.stack ?? `rejected with ${error}`))
}

function fail(message) {
  process.stderr.write(`FAILED after ${passed} checks: ${message}\n`)
  process.exit(1)
}

function brief(value) {
  const text = inspect(value)
  return text.length <= 200 ? text : `${text.slice(0, 200)}... (${text.length} characters)`
}

module.exports = {
  address, binary, large, nearLimit, tooLarge, shortTtlS, equal, holds, rejects, eventually, waitForExpiry, run,
}
