# frozen_string_literal: true

# dalli: binary protocol over TCP and a Unix socket.

require 'dalli'
require 'logger'

require_relative 'checks'

C = Checks

def main
  # The client logs every error that the checks provoke.
  Dalli.logger = Logger.new(IO::NULL)
  clients = { 'tcp' => C::ADDRESS, 'unix' => C::SOCKET }.to_h { |name, address| [name, connect(address)] }
  clients.each do |name, client|
    C.within(name)
    storage(client)
    comparison(client)
    retrieval(client)
    counters(client)
    refusals(client)
    quiet(client)
    statistics(client)
    flush(client)
    before_expiry(client)
  end
  C.wait_for_expiry
  clients.each do |name, client|
    C.within(name)
    after_expiry(client)
    client.close
  end
  spread
  C.finish('dalli', Dalli::VERSION)
end

def connect(*addresses)
  # The client's own limit is off, so that the server's limit applies.
  Dalli::Client.new(addresses, socket_timeout: 5, value_max_bytes: 16 * 1024 * 1024, compress: false)
end

def storage(client)
  { 'empty' => '', 'short' => 'value', 'text' => 'grüße 時間', 'object' => { 'nested' => [1, 2.5, nil] },
    'integer' => 2**62, 'large' => C::LARGE, 'near the limit' => C::NEAR_LIMIT[0..-65] }.each do |what, value|
    C.holds("set #{what}", client.set('key', value))
    C.equal("get #{what}", client.get('key'), value)
  end
  C.holds('set raw', client.set('key', C::BINARY, nil, raw: true))
  C.equal('get raw', client.get('key').b, C::BINARY)
  C.holds('set compressed', client.set('key', 'z' * 500_000, nil, compress: true))
  C.equal('get compressed', client.get('key'), 'z' * 500_000)

  C.holds('add absent', client.add('added', '1', nil, raw: true))
  C.equal('add present', client.add('added', '2', nil, raw: true), false)
  C.equal('add left the value', client.get('added'), '1')
  C.holds('replace present', client.replace('added', '3', nil, raw: true))
  # The client returns the token, which is 0 for an absent item.
  C.equal('replace absent', client.replace('absent', '3'), 0)
  C.holds('append', client.append('added', '-end'))
  C.holds('prepend', client.prepend('added', 'start-'))
  C.equal('append and prepend', client.get('added'), 'start-3-end')
  C.equal('append absent', client.append('absent', 'x'), false)
  C.holds('delete', client.delete('added'))
  C.equal('delete absent', client.delete('added'), nil)
  C.equal('get deleted', client.get('added'), nil)
  C.equal('fetch computes', client.fetch('fetched') { 'computed' }, 'computed')
  C.equal('fetch finds', client.fetch('fetched') { 'again' }, 'computed')

  # The binary protocol sends a key's length, so a key may have any bytes.
  ['k' * 250, "space and\ttab", "line\r\nend", 'schlüssel-時間', 'k' * 300].each do |key|
    C.holds("set key #{key[0, 12].inspect}", client.set(key, 'odd'))
    C.equal("get key #{key[0, 12].inspect}", client.get(key), 'odd')
  end
end

def comparison(client)
  client.set('compared', 'first')
  value, token = client.get_cas('compared')
  C.equal('value with the token', value, 'first')
  swapped = client.set_cas('compared', 'second', token)
  C.holds('set_cas answers a new token', swapped && swapped != token)
  C.equal('set_cas with an old token', client.set_cas('compared', 'lost', token), false)
  C.equal('the answered token is the item\'s', client.get_cas('compared'), ['second', swapped])
  C.equal('delete_cas with an old token', client.delete_cas('compared', token), false)
  C.holds('cas by block', client.cas('compared') { |old| "#{old} and third" })
  C.equal('cas by block stored', client.get('compared'), 'second and third')
  _, token = client.get_cas('compared')
  C.holds('delete_cas', client.delete_cas('compared', token))
  C.equal('cas by block on an absent key', client.cas('compared') { 'never' }, nil)
end

def retrieval(client)
  values = (0...100).to_h { |n| ["multi-#{n}", "value of #{n}"] }
  values.each { |key, value| client.set(key, value) }
  C.equal('get_multi', client.get_multi(*values.keys, 'absent'), values)
  found = client.get_multi_cas(*values.keys)
  C.equal('get_multi_cas', found.transform_values(&:first), values)
  C.equal('get_multi_cas tokens differ', found.values.map(&:last).uniq.length, 100)
end

def counters(client)
  C.equal('incr absent', client.incr('counter', 5), nil)
  C.equal('incr with a default', client.incr('counter', 5, nil, 10), 10)
  C.equal('incr', client.incr('counter', 5), 15)
  C.equal('decr', client.decr('counter', 6), 9)
  C.equal('decr pads to the old length', client.get('counter'), '9 ')
  C.equal('decr stops at zero', client.decr('counter', 100), 0)
  client.set('counter', '18446744073709551615', nil, raw: true)
  C.equal('incr wraps', client.incr('counter', 1), 0)
  client.set('counter', 'abc', nil, raw: true)
  C.raises('incr text', Dalli::DalliError, 'non-numeric') { client.incr('counter', 1) }
  client.delete('counter')
end

def refusals(client)
  client.set('key', 'old')
  C.raises('too large', Dalli::DalliError, 'Value too large') { client.set('key', C::TOO_LARGE) }
  C.equal('a refused set removes the old value', client.get('key'), nil)
  C.holds('usable after an error', client.set('key', 'new'))
end

def quiet(client)
  # Quiet opcodes, followed by one no-op.
  client.multi do
    1000.times { |n| client.set("quiet-#{n}", n.to_s) }
    client.delete('quiet-1')
    client.add('quiet-2', 'not stored')
  end
  expected = (0...1000).to_h { |n| ["quiet-#{n}", n.to_s] }
  expected.delete('quiet-1')
  C.equal('quiet sets', client.get_multi(*(0...1000).map { |n| "quiet-#{n}" }), expected)
end

def statistics(client)
  version = client.version.values.first
  C.holds('version is three numbers', version.match?(/\A\d+\.\d+\.\d+\z/))
  stats = client.stats.values.first
  C.equal('stats version', stats['version'], version)
  %w[pid uptime time curr_items cmd_get limit_maxbytes threads].each do |name|
    C.holds("stats #{name} is a number", stats[name].match?(/\A\d+\z/))
  end
  C.equal('settings item_size_max', client.stats(:settings).values.first['item_size_max'], '1048576')
  C.holds('stats items', client.stats(:items).values.first.keys.any? { |name| name.end_with?(':number') })
  C.holds('stats slabs', client.stats(:slabs).values.first.key?('active_slabs'))
  client.reset_stats
  C.equal('stats were reset', client.stats.values.first['total_items'], '0')
end

def flush(client)
  client.set('flushed', '1')
  C.equal('flush', client.flush, [true])
  C.equal('flushed', client.get('flushed'), nil)
  C.holds('set after flush', client.set('flushed', '2'))
  C.equal('get after flush', client.get('flushed'), '2')
end

def before_expiry(client)
  client.set('lasting', '1')
  client.set('short', '1', C::SHORT_TTL_S)
  client.set('touched', '1', C::SHORT_TTL_S)
  client.set('shortened', '1')
  C.equal('before expiry', client.get('short'), '1')
  C.equal('touch', client.touch('touched', 100), true)
  C.equal('touch absent', client.touch('absent', 100), nil)
  C.equal('gat', client.gat('shortened', C::SHORT_TTL_S), '1')
  C.equal('gat absent', client.gat('absent', 1), nil)
end

def after_expiry(client)
  C.equal('expired', client.get('short'), nil)
  C.equal('shortened by gat', client.get('shortened'), nil)
  C.equal('touched lives on', client.get('touched'), '1')
  C.equal('no expiry lives on', client.get('lasting'), '1')
end

def spread
  C.within('both')
  client = connect(C::ADDRESS, C::SOCKET)
  values = (0...200).to_h { |n| ["spread-#{n}", n.to_s] }
  values.each { |key, value| client.set(key, value) }
  C.equal('get_multi over both servers', client.get_multi(*values.keys), values)
  shares = [C::ADDRESS, C::SOCKET].map { |address| connect(address).get_multi(*values.keys) }
  C.equal('keys are on both servers', shares.sum(&:length), 200)
  C.holds('keys are spread', shares.all? { |share| share.length > 20 })
end

main
