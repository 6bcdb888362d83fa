<?php
// php-memcached: its class's calls, with values asserted, over the server that SERVER names.

declare(strict_types=1);

$passed = 0;

function fail(string $what, mixed $actual, mixed $expected): never
{
    global $passed;
    fwrite(STDERR, "FAILED after $passed checks: $what: expected " . var_export($expected, true) . ', got '
        . var_export($actual, true) . "\n");
    exit(1);
}

function same(string $what, mixed $actual, mixed $expected): void
{
    global $passed;
    if ($actual !== $expected) {
        fail($what, $actual, $expected);
    }
    $passed++;
}

function code(string $what, Memcached $client, int $expected): void
{
    same("$what (" . $client->getResultMessage() . ')', $client->getResultCode(), $expected);
}

function connect(array $options = [], ?string $persistent = null): Memcached
{
    $client = $persistent === null ? new Memcached() : new Memcached($persistent);
    foreach ($options as $option => $value) {
        same("option $option", $client->setOption($option, $value), true);
    }
    $server = getenv('SERVER');
    if ($client->getServerList() === []) {
        if ($server[0] === '/') {
            same('add server', $client->addServer($server, 0), true);
        } else {
            [$host, $port] = explode(':', $server);
            same('add server', $client->addServer($host, (int) $port), true);
        }
    }
    return $client;
}

function values(Memcached $client): void
{
    $object = new ArrayObject(['a' => 1]);
    $values = ['text', '', "zero\0byte", 17, -3, 1.5, true, false, ['a' => [1, 2]], str_repeat('long ', 100000)];
    foreach ($values as $number => $value) {
        same("set $number", $client->set("value-$number", $value), true);
        same("get $number", $client->get("value-$number"), $value);
    }
    same('set an object', $client->set('object', $object), true);
    same('get an object', $client->get('object')->getArrayCopy(), ['a' => 1]);
    same('get absent', $client->get('absent'), false);
    code('get absent', $client, Memcached::RES_NOTFOUND);
    same('get by callback', $client->get('made', function (Memcached $client, string $key, &$value): bool {
        $value = "made of $key";
        return true;
    }), 'made of made');
    same('the callback stored it', $client->get('made'), 'made of made');
}

function stores(Memcached $client, bool $binary): void
{
    same('add', $client->add('added', 'one'), true);
    same('add present', $client->add('added', 'two'), false);
    code('add present', $client, $binary ? Memcached::RES_DATA_EXISTS : Memcached::RES_NOTSTORED);
    same('replace', $client->replace('added', 'three'), true);
    same('replace absent', $client->replace('absent', 'three'), false);
    code('replace absent', $client, $binary ? Memcached::RES_NOTFOUND : Memcached::RES_NOTSTORED);
    $client->setOption(Memcached::OPT_COMPRESSION, false);
    same('append', $client->append('added', '-end'), true);
    same('prepend', $client->prepend('added', 'start-'), true);
    same('append and prepend', $client->get('added'), 'start-three-end');
    same('append absent', $client->append('absent', 'x'), false);
    $client->setOption(Memcached::OPT_COMPRESSION, true);
    same('touch', $client->touch('added', 100), true);
    same('touch absent', $client->touch('absent', 100), false);
    same('delete', $client->delete('added'), true);
    same('delete absent', $client->delete('added'), false);
    code('delete absent', $client, Memcached::RES_NOTFOUND);
    if (!$binary) {
        same('set expired', $client->set('short', 'value', -1), true);
        same('get expired', $client->get('short'), false);
    }
}

function comparisons(Memcached $client): void
{
    same('set', $client->set('compared', 'first'), true);
    $found = $client->get('compared', null, Memcached::GET_EXTENDED);
    same('extended value', $found['value'], 'first');
    same('cas', $client->cas($found['cas'], 'compared', 'second'), true);
    same('cas with an old token', $client->cas($found['cas'], 'compared', 'lost'), false);
    code('cas with an old token', $client, Memcached::RES_DATA_EXISTS);
    same('value after', $client->get('compared'), 'second');
    $all = $client->getMulti(['compared', 'absent'], Memcached::GET_EXTENDED);
    same('extended keys', array_keys($all), ['compared']);
    same('cas by key', $client->casByKey($all['compared']['cas'], 'group', 'compared', 'third'), true);
}

function many(Memcached $client): void
{
    $items = [];
    for ($n = 0; $n < 200; $n++) {
        $items["multi-$n"] = "value $n";
    }
    same('set many', $client->setMulti($items), true);
    same('get many', $client->getMulti(array_keys($items), Memcached::GET_PRESERVE_ORDER), $items);
    same('get many by key', $client->getMultiByKey('group', ['multi-3', 'absent']), ['multi-3' => 'value 3']);
    same('get delayed', $client->getDelayed(['multi-1', 'multi-2', 'absent'], true), true);
    $fetched = [];
    while ($result = $client->fetch()) {
        $fetched[$result['key']] = $result['value'];
    }
    same('fetch', $fetched, ['multi-1' => 'value 1', 'multi-2' => 'value 2']);
    same('get delayed by key', $client->getDelayedByKey('group', ['multi-4']), true);
    same('fetch all', array_column($client->fetchAll(), 'value', 'key'), ['multi-4' => 'value 4']);
    $seen = 0;
    same('get delayed with a callback', $client->getDelayed(['multi-5', 'multi-6'], false,
        function (Memcached $client, array $item) use (&$seen): void {
            $seen++;
        }), true);
    same('called back', $seen, 2);
    same('delete many', $client->deleteMulti(['multi-1', 'absent']),
        ['multi-1' => true, 'absent' => Memcached::RES_NOTFOUND]);
}

function byKey(Memcached $client): void
{
    same('set by key', $client->setByKey('group', 'grouped', 'value', 0), true);
    same('get by key', $client->getByKey('group', 'grouped'), 'value');
    same('add by key', $client->addByKey('group', 'grouped', 'other'), false);
    same('replace by key', $client->replaceByKey('group', 'grouped', 'other'), true);
    same('touch by key', $client->touchByKey('group', 'grouped', 100), true);
    same('delete by key', $client->deleteByKey('group', 'grouped'), true);
    same('set many by key', $client->setMultiByKey('group', ['a' => 1, 'b' => 2]), true);
    same('delete many by key', $client->deleteMultiByKey('group', ['a', 'b']), ['a' => true, 'b' => true]);
    $server = $client->getServerByKey('group');
    $local = getenv('SERVER')[0] === '/';
    same('server by key', $server['host'] . ($local ? '' : ":{$server['port']}"), getenv('SERVER'));
}

function counters(Memcached $client, bool $binary): void
{
    same('set', $client->set('counter', 10), true);
    same('increment', $client->increment('counter', 5), 15);
    same('decrement', $client->decrement('counter', 20), 0);
    same('increment absent', $client->increment('no-counter'), false);
    code('increment absent', $client, Memcached::RES_NOTFOUND);
    if ($binary) {
        same('increment from a start', $client->increment('started', 1, 100), 100);
        same('increment the started', $client->increment('started', 1, 100), 101);
        same('increment by key', $client->incrementByKey('group', 'started', 2, 100), 103);
        same('decrement by key', $client->decrementByKey('group', 'started', 3, 100), 100);
    }
}

function servers(Memcached $client): void
{
    $stats = $client->getStats();
    same('servers with statistics', count($stats), 1);
    $values = reset($stats);
    same('statistics', is_array($values) && $values['pid'] > 0, true);
    $versions = $client->getVersion();
    same('version', preg_match('/^\d+\.\d+\.\d+/', (string) reset($versions)), 1);
    same('flush buffers', $client->flushBuffers(), true);
    same('set', $client->set('flushed', 1), true);
    same('flush', $client->flush(), true);
    same('after the flush', $client->get('flushed'), false);
    same('quit', $client->quit(), true);
    same('after quitting', $client->set('again', 1), true);
    same('an empty key', $client->set('', 1), false);
    code('an empty key', $client, Memcached::RES_BAD_KEY_PROVIDED);
    same('a key too long', $client->set(str_repeat('k', 251), 1), false);
    same('last error', $client->getLastErrorMessage() !== '', true);
    $nobody = new Memcached();
    same('without servers', $nobody->set('key', 1), false);
    code('without servers', $nobody, Memcached::RES_NO_SERVERS);
    $nobody->addServer('127.0.0.1', 1);
    same('a dead server', $nobody->get('key'), false);
    same('a dead server is reported', $nobody->getResultCode() !== Memcached::RES_SUCCESS, true);
    $disconnected = $nobody->getLastDisconnectedServer();
    same('the dead server', $disconnected === false || $disconnected['port'] === 1, true);
}

function options(): void
{
    $client = connect([Memcached::OPT_PREFIX_KEY => 'prefix:', Memcached::OPT_HASH => Memcached::HASH_MD5]);
    same('prefix', $client->getOption(Memcached::OPT_PREFIX_KEY), 'prefix:');
    same('hash', $client->getOption(Memcached::OPT_HASH), Memcached::HASH_MD5);
    same('set with a prefix', $client->set('key', 'prefixed'), true);
    same('get with a prefix', $client->get('key'), 'prefixed');
    same('get without', connect()->get('prefix:key'), 'prefixed');
    $buffered = connect([Memcached::OPT_BUFFER_WRITES => true, Memcached::OPT_NO_BLOCK => true]);
    for ($n = 0; $n < 50; $n++) {
        $buffered->set("buffered-$n", $n);
    }
    same('flush buffers', $buffered->flushBuffers(), true);
    same('buffered', $buffered->get('buffered-49'), 49);
    $compatible = connect([Memcached::OPT_LIBKETAMA_COMPATIBLE => true, Memcached::OPT_TCP_NODELAY => true]);
    same('consistent', $compatible->getOption(Memcached::OPT_DISTRIBUTION) !== Memcached::DISTRIBUTION_MODULA, true);
    same('set consistent', $compatible->set('key', 'ketama'), true);
    $first = connect([], 'kept');
    same('pristine', $first->isPristine(), true);
    same('persistent', $first->isPersistent(), true);
    same('set persistent', $first->set('persistent', 1), true);
    $second = connect([], 'kept');
    same('not pristine', $second->isPristine(), false);
    same('get persistent', $second->get('persistent'), 1);
    same('reset servers', $second->resetServerList(), true);
    same('no servers', $second->getServerList(), []);
}

foreach ([false, true] as $binary) {
    $client = connect([Memcached::OPT_BINARY_PROTOCOL => $binary]);
    same('flush', $client->flush(), true);
    values($client);
    stores($client, $binary);
    comparisons($client);
    many($client);
    byKey($client);
    counters($client, $binary);
    servers($client);
}
options();
echo 'php-memcached ', phpversion('memcached'), ': ', $passed, " checks passed\n";
