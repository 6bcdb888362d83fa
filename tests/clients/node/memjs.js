// memjs: binary protocol over TCP.
'use strict'

const memjs = require('memjs')
const c = require('./checks')

c.run('memjs', async () => {
  const client = create(c.address)
  await storage(client)
  await counters(client)
  await refusals(client)
  await pipeline(client)
  await statistics(client)
  await flush(client)
  await expiry(client)
  await credentials()
  client.quit()
})

function create(address) {
  // The client logs every error that the checks provoke.
  return memjs.Client.create(address, { timeout: 5, retries: 1, logger: { log() {} } })
}

async function storage(client) {
  for (const [what, value] of [
    ['empty', Buffer.alloc(0)],
    ['short', Buffer.from('value')],
    ['binary', c.binary],
    ['large', c.large],
    ['near the limit', c.nearLimit],
  ]) {
    c.equal(`set ${what}`, await client.set('key', value, {}), true)
    const found = await client.get('key')
    c.equal(`get ${what}`, found.value, value)
    c.equal(`flags of ${what}`, found.flags, Buffer.alloc(4))
  }
  c.equal('get absent', await client.get('absent'), { value: null, flags: null })

  c.equal('add absent', await client.add('added', '1', {}), true)
  c.equal('add present', await client.add('added', '2', {}), false)
  c.equal('add left the value', await text(client, 'added'), '1')
  c.equal('replace present', await client.replace('added', '3', {}), true)
  c.equal('replace absent', await client.replace('absent', '3', {}), false)
  c.equal('append', await client.append('added', '-end'), true)
  // This release sends the opcode of append here too.
  c.equal('prepend', await client.prepend('added', '-more'), true)
  c.equal('appended twice', await text(client, 'added'), '3-end-more')
  await c.rejects('append absent', 'Item not stored', client.append('absent', 'x'))
  c.equal('delete', await client.delete('added'), true)
  c.equal('delete absent', await client.delete('added'), false)

  // The binary protocol sends a key's length, so a key may have any bytes.
  for (const key of ['k'.repeat(250), 'space and\ttab', 'line\r\nend', 'schlüssel-時間']) {
    c.equal(`set key ${key.slice(0, 12)}`, await client.set(key, 'odd', {}), true)
    c.equal(`get key ${key.slice(0, 12)}`, await text(client, key), 'odd')
  }
}

async function counters(client) {
  c.equal('increment absent', await client.increment('counter', 5, { initial: 10, expires: 100 }),
    { success: true, value: 10 })
  c.equal('increment', await client.increment('counter', 5, {}), { success: true, value: 15 })
  c.equal('decrement', await client.decrement('counter', 6, {}), { success: true, value: 9 })
  c.equal('decrement pads to the old length', await text(client, 'counter'), '9 ')
  c.equal('decrement stops at zero', await client.decrement('counter', 100, {}), { success: true, value: 0 })
  await client.set('counter', 'abc', {})
  await c.rejects('increment text', 'Incr/Decr on non-numeric value', client.increment('counter', 1, {}))
}

async function refusals(client) {
  await client.set('key', 'old', {})
  await c.rejects('too large', 'Value too large', client.set('key', c.tooLarge, {}))
  c.equal('a refused set removes the old value', (await client.get('key')).value, null)
  c.equal('usable after an error', await client.set('key', 'new', {}), true)
  const other = create(c.address)
  await c.rejects('key too long', 'Invalid arguments', other.get('k'.repeat(251)))
  other.close()
}

async function pipeline(client) {
  const keys = Array.from({ length: 100 }, (_, n) => `piped-${n}`)
  const stored = await Promise.all(keys.map((key) => client.set(key, `value of ${key}`, {})))
  c.equal('100 sets at once', stored, keys.map(() => true))
  const found = await Promise.all(keys.map((key) => text(client, key)))
  c.equal('100 gets at once', found, keys.map((key) => `value of ${key}`))
}

async function statistics(client) {
  const stats = await named(client, '')
  c.holds('version is three numbers', /^\d+\.\d+\.\d+$/.test(stats.version))
  for (const name of ['pid', 'uptime', 'time', 'curr_items', 'cmd_get', 'cmd_set', 'limit_maxbytes', 'threads']) {
    c.holds(`stats ${name} is a number`, /^\d+$/.test(stats[name]))
  }
  c.equal('settings item_size_max', (await named(client, 'settings')).item_size_max, '1048576')
  c.holds('stats items', Object.keys(await named(client, 'items')).some((name) => name.endsWith(':number')))
  c.holds('stats slabs', 'active_slabs' in (await named(client, 'slabs')))
  await named(client, 'reset')
  c.equal('stats were reset', (await named(client, '')).total_items, '0')
}

async function flush(client) {
  await client.set('flushed', '1', {})
  c.equal('flush', await client.flush(), { [c.address]: true })
  c.equal('flushed', (await client.get('flushed')).value, null)
  c.equal('set after flush', await client.set('flushed', '2', {}), true)
  c.equal('get after flush', await text(client, 'flushed'), '2')
}

async function expiry(client) {
  await client.set('lasting', '1', {})
  await client.set('short', '1', { expires: c.shortTtlS })
  await client.set('touched', '1', { expires: c.shortTtlS })
  c.equal('before expiry', await text(client, 'short'), '1')
  c.equal('touch', await client.touch('touched', 100), true)
  c.equal('touch absent', await client.touch('absent', 100), false)
  await c.waitForExpiry()
  c.equal('expired', (await client.get('short')).value, null)
  c.equal('touched lives on', await text(client, 'touched'), '1')
  c.equal('no expiry lives on', await text(client, 'lasting'), '1')
}

async function credentials() {
  // Without -S the server rejects the SASL opcodes, which the client must tolerate.
  const client = create(`user:password@${c.address}`)
  c.equal('credentials that are not asked for', await client.set('key', '1', {}), true)
  client.close()
}

async function text(client, key) {
  const { value } = await client.get(key)
  return value === null ? null : value.toString()
}

function named(client, name) {
  return new Promise((resolve, reject) => {
    client.statsWithKey(name, (error, _server, stats) => (error ? reject(error) : resolve(stats)))
  })
}
