// gomemcache: text protocol over TCP and a Unix socket.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

func main() {
	modes := []struct{ name, address string }{
		{"tcp", os.Getenv("SERVER_HOST") + ":" + os.Getenv("SERVER_PORT")},
		{"unix", os.Getenv("SERVER_SOCKET")},
	}
	clients := make([]*memcache.Client, len(modes))
	for n, mode := range modes {
		within(mode.name)
		client := memcache.New(mode.address)
		client.Timeout = 5 * time.Second
		client.MaxIdleConns = 16
		clients[n] = client
		ok("ping", client.Ping())
		storage(client)
		retrieval(client)
		counters(client)
		refusals(client)
		concurrency(client)
		flush(client)
	}
	for n, mode := range modes {
		within(mode.name)
		beforeExpiry(clients[n])
	}
	waitForExpiry()
	for n, mode := range modes {
		within(mode.name)
		afterExpiry(clients[n])
		ok("close", clients[n].Close())
	}
	within("both")
	spread(modes[0].address, modes[1].address)
	finish("gomemcache", dependencyVersion("github.com/bradfitz/gomemcache"))
}

func storage(client *memcache.Client) {
	for _, each := range []struct {
		what  string
		value []byte
	}{
		{"empty", []byte{}},
		{"short", []byte("value")},
		{"binary", binary},
		{"line ends", []byte("a\r\nEND\r\nb")},
		{"large", large},
		{"near the limit", nearLimit},
	} {
		ok("set "+each.what, client.Set(&memcache.Item{Key: "key", Value: each.value, Flags: 0xfffffffe}))
		item := get(client, "key")
		equal("get "+each.what, item.Value, each.value)
		equal("flags of "+each.what, item.Flags, uint32(0xfffffffe))
	}

	ok("add absent", client.Add(&memcache.Item{Key: "added", Value: []byte("1")}))
	equal("add present", client.Add(&memcache.Item{Key: "added", Value: []byte("2")}), memcache.ErrNotStored)
	equal("add left the value", get(client, "added").Value, []byte("1"))
	ok("replace present", client.Replace(&memcache.Item{Key: "added", Value: []byte("3")}))
	equal("replace absent", client.Replace(&memcache.Item{Key: "absent", Value: []byte("3")}), memcache.ErrNotStored)
	ok("append", client.Append(&memcache.Item{Key: "added", Value: []byte("-end")}))
	ok("prepend", client.Prepend(&memcache.Item{Key: "added", Value: []byte("start-")}))
	equal("append and prepend", get(client, "added").Value, []byte("start-3-end"))
	equal("append absent", client.Append(&memcache.Item{Key: "absent", Value: []byte("x")}), memcache.ErrNotStored)
	equal("prepend absent", client.Prepend(&memcache.Item{Key: "absent", Value: []byte("x")}), memcache.ErrNotStored)

	mine, theirs := get(client, "added"), get(client, "added")
	holds("a token on every get", mine.CasID > 0)
	equal("the same token until a store", mine.CasID, theirs.CasID)
	mine.Value = []byte("swapped")
	ok("cas", client.CompareAndSwap(mine))
	theirs.Value = []byte("lost")
	equal("cas with an old token", client.CompareAndSwap(theirs), memcache.ErrCASConflict)
	equal("cas kept the winner", get(client, "added").Value, []byte("swapped"))
	ok("delete", client.Delete("added"))
	equal("cas on a deleted key", client.CompareAndSwap(theirs), memcache.ErrCacheMiss)
	equal("delete absent", client.Delete("added"), memcache.ErrCacheMiss)
	_, err := client.Get("added")
	equal("get deleted", err, memcache.ErrCacheMiss)

	for _, key := range []string{strings.Repeat("k", 250), "punctuation~!@#$%^&*()", "schlüssel-時間"} {
		ok("set key "+key[:12], client.Set(&memcache.Item{Key: key, Value: []byte("odd")}))
		equal("get key "+key[:12], get(client, key).Value, []byte("odd"))
	}
}

func retrieval(client *memcache.Client) {
	keys := make([]string, 100)
	for n := range keys {
		keys[n] = fmt.Sprintf("multi-%d", n)
		ok("set "+keys[n], client.Set(&memcache.Item{Key: keys[n], Value: []byte(strings.Repeat(keys[n], n))}))
	}
	found, err := client.GetMulti(append([]string{"absent"}, keys...))
	ok("get multi", err)
	equal("get multi finds", len(found), len(keys))
	for n, key := range keys {
		equal("get multi "+key, string(found[key].Value), strings.Repeat(key, n))
	}
}

func counters(client *memcache.Client) {
	ok("set counter", client.Set(&memcache.Item{Key: "counter", Value: []byte("10")}))
	equal("increment", number(client.Increment("counter", 5)), uint64(15))
	equal("decrement", number(client.Decrement("counter", 6)), uint64(9))
	equal("decrement pads to the old length", get(client, "counter").Value, []byte("9 "))
	equal("decrement stops at zero", number(client.Decrement("counter", 100)), uint64(0))
	_, err := client.Increment("absent", 1)
	equal("increment absent", err, memcache.ErrCacheMiss)
	ok("set counter", client.Set(&memcache.Item{Key: "counter", Value: []byte("18446744073709551615")}))
	equal("increment wraps", number(client.Increment("counter", 1)), uint64(0))
	ok("set text", client.Set(&memcache.Item{Key: "counter", Value: []byte("abc")}))
	_, err = client.Increment("counter", 1)
	equal("increment text", fmt.Sprint(err),
		"memcache: client error: cannot increment or decrement non-numeric value")
}

func refusals(client *memcache.Client) {
	ok("set", client.Set(&memcache.Item{Key: "key", Value: []byte("old")}))
	err := client.Set(&memcache.Item{Key: "key", Value: tooLarge})
	holds("too large", err != nil && strings.Contains(err.Error(), "SERVER_ERROR object too large for cache"))
	_, err = client.Get("key")
	equal("a refused set removes the old value", err, memcache.ErrCacheMiss)
	ok("usable after an error", client.Set(&memcache.Item{Key: "key", Value: []byte("new")}))
	for _, key := range []string{strings.Repeat("k", 251), "a b", "line\n"} {
		equal("the client refuses a bad key", client.Set(&memcache.Item{Key: key}), memcache.ErrMalformedKey)
	}
}

func concurrency(client *memcache.Client) {
	ok("set shared", client.Set(&memcache.Item{Key: "shared", Value: []byte("0")}))
	var group sync.WaitGroup
	failures := make(chan error, 16)
	for worker := 0; worker < 16; worker++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for n := 0; n < 100; n++ {
				if _, err := client.Increment("shared", 1); err != nil {
					failures <- err
					return
				}
			}
		}()
	}
	group.Wait()
	close(failures)
	ok("increments from 16 connections", <-failures)
	equal("no increment is lost", string(get(client, "shared").Value), "1600")
}

func flush(client *memcache.Client) {
	ok("set", client.Set(&memcache.Item{Key: "flushed", Value: []byte("1")}))
	ok("flush all", client.FlushAll())
	_, err := client.Get("flushed")
	equal("flushed", err, memcache.ErrCacheMiss)
	ok("set after flush all", client.Set(&memcache.Item{Key: "flushed", Value: []byte("2")}))
	equal("get after flush all", get(client, "flushed").Value, []byte("2"))
}

func beforeExpiry(client *memcache.Client) {
	one := []byte("1")
	ok("set lasting", client.Set(&memcache.Item{Key: "lasting", Value: one}))
	ok("set short", client.Set(&memcache.Item{Key: "short", Value: one, Expiration: shortTTL}))
	ok("set touched", client.Set(&memcache.Item{Key: "touched", Value: one, Expiration: shortTTL}))
	ok("set shortened", client.Set(&memcache.Item{Key: "shortened", Value: one}))
	ok("set past", client.Set(&memcache.Item{Key: "past", Value: one, Expiration: -1}))
	_, err := client.Get("past")
	equal("already expired", err, memcache.ErrCacheMiss)
	ok("set until a date", client.Set(&memcache.Item{Key: "dated", Value: one,
		Expiration: int32(time.Now().Add(time.Hour).Unix())}))
	ok("touch", client.Touch("touched", 100))
	equal("touch absent", client.Touch("absent", 100), memcache.ErrCacheMiss)
	item, err := client.GetAndTouch("shortened", shortTTL)
	ok("get and touch", err)
	equal("get and touch value", item.Value, one)
	_, err = client.GetAndTouch("absent", shortTTL)
	equal("get and touch absent", err, memcache.ErrCacheMiss)
	equal("before expiry", get(client, "short").Value, one)
}

func afterExpiry(client *memcache.Client) {
	for _, key := range []string{"short", "shortened"} {
		_, err := client.Get(key)
		equal(key+" expired", err, memcache.ErrCacheMiss)
	}
	for _, key := range []string{"lasting", "touched", "dated"} {
		equal(key+" lives on", get(client, key).Value, []byte("1"))
	}
}

func spread(addresses ...string) {
	client := memcache.New(addresses...)
	client.Timeout = 5 * time.Second
	keys := make([]string, 200)
	for n := range keys {
		keys[n] = fmt.Sprintf("spread-%d", n)
		ok("set "+keys[n], client.Set(&memcache.Item{Key: keys[n], Value: []byte(keys[n])}))
	}
	found, err := client.GetMulti(keys)
	ok("get multi", err)
	equal("keys on both servers", len(found), len(keys))
	total := 0
	for _, address := range addresses {
		share, err := memcache.New(address).GetMulti(keys)
		ok("get multi from one", err)
		holds("keys are spread", len(share) > 20)
		total += len(share)
	}
	equal("no key is on two", total, len(keys))
}

func get(client *memcache.Client, key string) *memcache.Item {
	item, err := client.Get(key)
	if errors.Is(err, memcache.ErrCacheMiss) {
		fail("get %.12q: missing", key)
	}
	ok(fmt.Sprintf("get %.12q", key), err)
	return item
}

func number(value uint64, err error) uint64 {
	ok("counter", err)
	return value
}
