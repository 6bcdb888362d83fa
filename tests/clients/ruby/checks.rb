# frozen_string_literal: true

# Helpers of a Ruby client program: the servers' addresses and counted assertions.
module Checks
  ADDRESS = "#{ENV.fetch('SERVER_HOST')}:#{ENV.fetch('SERVER_PORT')}"
  SOCKET = ENV.fetch('SERVER_SOCKET')

  BINARY = (0..255).to_a.pack('C*').freeze
  # Both are below the 1 MiB item limit; the larger one leaves room only for the item's overhead.
  LARGE = (BINARY * 3900).freeze
  NEAR_LIMIT = ('n' * ((1024 * 1024) - 1024)).freeze
  # One byte more than a whole item may take.
  TOO_LARGE = ('t' * ((1024 * 1024) + 1)).freeze
  # The shortest time to live that cannot end at the very next tick of the clock.
  SHORT_TTL_S = 2

  @passed = 0
  @context = ''

  module_function

  # Names the mode (protocol, transport) that the next checks run in.
  def within(name)
    @context = "#{name}: "
  end

  def equal(what, actual, expected)
    fail_with("#{what}: expected #{brief(expected)}, got #{brief(actual)}") unless actual == expected
    @passed += 1
  end

  def holds(what, condition)
    equal(what, condition ? true : false, true)
  end

  # Checks that the block raises `kind` with a message that contains `text`.
  def raises(what, kind, text)
    result = yield
  rescue kind => e
    fail_with("#{what}: expected #{text}, got #{e.message}") unless e.message.include?(text)
    @passed += 1
  else
    fail_with("#{what}: expected #{kind}, got #{brief(result)}")
  end

  def wait_for_expiry
    sleep(SHORT_TTL_S + 0.2)
  end

  def finish(client, version)
    puts "#{client} #{version}: #{@passed} checks passed"
  end

  def fail_with(message)
    abort("FAILED after #{@passed} checks: #{@context}#{message}")
  end

  def brief(value)
    text = value.inspect
    text.length <= 200 ? text : "#{text[0, 200]}... (#{text.length} characters)"
  end
end
