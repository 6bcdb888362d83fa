// memcached (3rd-Eden): text protocol over TCP, and its parsers of every kind of stats.
'use strict'

const Memcached = require('memcached')
const c = require('./checks')

c.run('memcached', async () => {
  const client = create()
  const call = caller(client)
  await storage(call)
  await retrieval(call)
  await counters(call)
  await refusals(call)
  await statistics(call)
  await flush(call)
  await expiry(call)
  client.end()
})

function create() {
  // The client's own limit is off, so that the server's limit applies.
  return new Memcached(c.address, { maxValue: 16 * 1024 * 1024, retries: 0 })
}

function caller(client) {
  return (method, ...args) => new Promise((resolve, reject) => {
    client[method](...args, (error, result) => (error ? reject(error) : resolve(result)))
  })
}

async function storage(call) {
  for (const [what, value] of [
    ['empty', ''],
    ['short', 'value'],
    ['text', 'grüße 時間'],
    ['number', 12345],
    ['object', { nested: [1, 2.5, null] }],
    ['line ends', 'a\r\nEND\r\nb'],
    ['large', 'l'.repeat(500_000)],
    ['near the limit', c.nearLimit.toString()],
  ]) {
    c.equal(`set ${what}`, await call('set', 'key', value, 0), true)
    c.equal(`get ${what}`, await call('get', 'key'), value)
  }
  c.equal('set binary', await call('set', 'key', c.binary, 0), true)
  // The client measures a Buffer before it decodes it, so its end may be cut off.
  c.equal('get binary', (await call('get', 'key')).subarray(0, 128), c.binary.subarray(0, 128))
  c.equal('get absent', await call('get', 'absent'), undefined)

  c.equal('add absent', await call('add', 'added', '1', 0), true)
  await c.rejects('add present', 'Item is not stored', call('add', 'added', '2', 0))
  c.equal('add left the value', await call('get', 'added'), '1')
  c.equal('replace present', await call('replace', 'added', '3', 0), true)
  await c.rejects('replace absent', 'Item is not stored', call('replace', 'absent', '3', 0))
  c.equal('append', await call('append', 'added', '-end'), true)
  c.equal('prepend', await call('prepend', 'added', 'start-'), true)
  c.equal('append and prepend', await call('get', 'added'), 'start-3-end')
  await c.rejects('append absent', 'Item is not stored', call('append', 'absent', 'x'))

  const { added, cas } = await call('gets', 'added')
  c.equal('gets value', added, 'start-3-end')
  c.holds('gets token', /^\d+$/.test(cas))
  c.equal('cas', await call('cas', 'added', 'swapped', cas, 0), true)
  c.equal('cas with an old token', await call('cas', 'added', 'lost', cas, 0), false)
  c.equal('cas absent', await call('cas', 'absent', 'lost', cas, 0), false)
  c.equal('cas kept the winner', await call('get', 'added'), 'swapped')
  c.equal('delete', await call('del', 'added'), true)
  c.equal('delete absent', await call('del', 'added'), false)

  for (const key of ['k'.repeat(250), 'punctuation~!@#%^&*()', 'schlüssel-時間']) {
    c.equal(`set key ${key.slice(0, 12)}`, await call('set', key, 'odd', 0), true)
    c.equal(`get key ${key.slice(0, 12)}`, await call('get', key), 'odd')
  }
}

async function retrieval(call) {
  const keys = Array.from({ length: 100 }, (_, n) => `multi-${n}`)
  await Promise.all(keys.map((key) => call('set', key, `value of ${key}`, 0)))
  const expected = Object.fromEntries(keys.map((key) => [key, `value of ${key}`]))
  c.equal('getMulti', await call('getMulti', [...keys, 'absent']), expected)
}

async function counters(call) {
  await call('set', 'counter', '10', 0)
  c.equal('incr', await call('incr', 'counter', 5), 15)
  c.equal('decr', await call('decr', 'counter', 6), 9)
  c.equal('decr stops at zero', await call('decr', 'counter', 100), 0)
  c.equal('incr absent', await call('incr', 'absent', 1), false)
  await call('set', 'counter', 'abc', 0)
  await c.rejects('incr text', 'cannot increment or decrement non-numeric value', call('incr', 'counter', 1))
}

async function refusals(call) {
  await call('set', 'key', 'old', 0)
  // This client treats a server error as a failure of the server, and avoids it for a while.
  const shunning = create()
  const issue = new Promise((resolve) => shunning.once('issue', resolve))
  c.equal('too large', await caller(shunning)('set', 'key', c.tooLarge.toString(), 0), false)
  c.equal('too large says', (await issue).messages, ['object too large for cache'])
  shunning.end()
  c.equal('a refused set removes the old value', await call('get', 'key'), undefined)
  c.equal('usable after an error', await call('set', 'key', 'new', 0), true)
  await c.rejects('the client refuses a space', 'whitespace', call('set', 'a b', '', 0))
  c.equal('the client shortens a long key', await call('set', 'k'.repeat(251), 'long', 0), true)
  c.equal('get by a long key', await call('get', 'k'.repeat(251)), 'long')
}

async function statistics(call) {
  const [version] = await call('version')
  c.holds('version parts', Number(version.major) > 0 && version.minor !== undefined && version.bugfix !== undefined)
  const [stats] = await call('stats')
  c.equal('stats version', stats.version, version.version)
  for (const name of ['pid', 'uptime', 'time', 'curr_items', 'cmd_get', 'cmd_set', 'limit_maxbytes', 'threads']) {
    c.equal(`stats ${name} is a number`, typeof stats[name], 'number')
  }
  const [settings] = await call('settings')
  c.equal('settings item_size_max', settings.item_size_max, 1048576)
  const [slabs] = await call('slabs')
  c.holds('slabs totals', slabs.active_slabs.undefined > 0 && slabs.total_malloced.undefined > 0)
  c.holds('slabs chunk sizes', Object.values(slabs).some((each) => each.chunk_size > 0))

  // This client returns an empty list for more than one item, so the item must be alone in its class: by its
  // size where sizes have classes, else after a flush.
  await call('flush')
  await call('set', 'dumped', 'd'.repeat(3000), 3600)
  const [items] = await call('items')
  const classes = Object.keys(items).filter((each) => items[each].number > 0)
  c.holds('items has classes', classes.length > 0)
  // memcached dumps only its cold items, and takes a moment to let a new one cool.
  let item
  await c.eventually('cachedump', async () => {
    for (const each of classes) {
      const dump = await call('cachedump', items.server, Number(each), 0)
      item ??= [dump ?? []].flat().find((found) => found?.key === 'dumped')
    }
    return item
  })
  c.equal('cachedump size', item.b, 3000)
  c.holds('cachedump expiry', Math.abs(item.s - (Date.now() / 1000 + 3600)) < 10)
}

async function flush(call) {
  await call('set', 'flushed', '1', 0)
  c.equal('flush', await call('flush'), [true])
  c.equal('flushed', await call('get', 'flushed'), undefined)
  c.equal('set after flush', await call('set', 'flushed', '2', 0), true)
  c.equal('get after flush', await call('get', 'flushed'), '2')
}

async function expiry(call) {
  await call('set', 'lasting', '1', 0)
  await call('set', 'short', '1', c.shortTtlS)
  await call('set', 'touched', '1', c.shortTtlS)
  c.equal('before expiry', await call('get', 'short'), '1')
  c.equal('touch', await call('touch', 'touched', 100), true)
  c.equal('touch absent', await call('touch', 'absent', 100), false)
  await c.waitForExpiry()
  c.equal('expired', await call('get', 'short'), undefined)
  c.equal('touched lives on', await call('get', 'touched'), '1')
  c.equal('no expiry lives on', await call('get', 'lasting'), '1')
}
