package main

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"time"
)

// Both are below the 1 MiB item limit; the larger one leaves room only for the item's overhead.
var (
	binary    = allBytes()
	large     = bytes.Repeat(binary, 3900)
	nearLimit = bytes.Repeat([]byte("n"), 1024*1024-1024)
	tooLarge  = bytes.Repeat([]byte("t"), 1024*1024+1)
)

// Two seconds is the shortest time to live that cannot end at the very next tick of the clock.
const shortTTL = 2

var (
	passed  int
	context string
)

// within names the mode (protocol, transport) that the next checks run in.
func within(name string) { context = name + ": " }

func equal(what string, actual, expected any) {
	if !reflect.DeepEqual(actual, expected) {
		fail("%s: expected %s, got %s", what, brief(expected), brief(actual))
	}
	passed++
}

func ok(what string, err error) { equal(what, err, nil) }

func holds(what string, condition bool) { equal(what, condition, true) }

func finish(client, version string) {
	fmt.Printf("%s %s: %d checks passed\n", client, version, passed)
}

func waitForExpiry() { time.Sleep(shortTTL*time.Second + 200*time.Millisecond) }

func fail(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, "FAILED after %d checks: %s%s\n", passed, context, fmt.Sprintf(format, arguments...))
	os.Exit(1)
}

// dependencyVersion returns the version of a module that is built into this program.
func dependencyVersion(path string) string {
	if info, found := debug.ReadBuildInfo(); found {
		for _, module := range info.Deps {
			if module.Path == path {
				return module.Version
			}
		}
	}
	return "unknown"
}

func allBytes() []byte {
	all := make([]byte, 256)
	for n := range all {
		all[n] = byte(n)
	}
	return all
}

func brief(value any) string {
	text := fmt.Sprintf("%v", value)
	if raw, isBytes := value.([]byte); isBytes {
		text = fmt.Sprintf("%q", raw)
	}
	if len(text) > 200 {
		return fmt.Sprintf("%s... (%d characters)", text[:200], len(text))
	}
	return text
}
