# lifecycle/lib.sh by itself; tests/engines/test_lib.py runs it where /opt is empty.

setup() {
  mkdir -p /opt/trainshed
  printf 'settings_region=us-east-2\n' >/opt/trainshed/settings.sh
  work=$(mktemp -d)
}

# A step of a few lines, as bash runs it.
step() {
  printf '. "%s/lifecycle/lib.sh"\nsleep() { :; }\n%s\n' "$REPOSITORY" "$1" >"$work/step.sh"
  run env -i bash "$work/step.sh"
}

@test "place writes the text with its mode and says that something changed" {
  step "printf 'a b\n' | place 640 $work/deep/file; echo \"changed=\$changed\"; stat -c %a $work/deep/file"
  [ "$status" -eq 0 ]
  [ "$output" = $'changed=yes\n640' ]
  [ "$(cat "$work/deep/file")" = 'a b' ]
  [ "$(ls "$work/deep")" = file ]
}

@test "place leaves a file alone that is so already" {
  echo same >"$work/file"
  touch -d 2020-01-01 "$work/file"
  step "echo same | place 644 $work/file; echo \"changed=\$changed\"; stat -c %Y $work/file"
  [ "$output" = $'changed=\n'"$(date -d 2020-01-01 +%s)" ]
}

@test "retry stops at the first success" {
  step "try() { echo x >>$work/tries; [ \$(wc -l <$work/tries) -eq 3 ]; }; retry try && echo well"
  [ "$status" -eq 0 ]
  [ "$(wc -l <"$work/tries")" -eq 3 ]
  [ "${lines[-1]}" = well ]
}

@test "retry gives up after five and hands the code on" {
  step "try() { echo x >>$work/tries; return 7; }; retry try || echo \"code \$?\""
  [ "$(wc -l <"$work/tries")" -eq 5 ]
  [ "${lines[-1]}" = 'code 7' ]
}

@test "what is tried again does not end up in a value" {
  step "try() { echo x >>$work/tries; [ \$(wc -l <$work/tries) -eq 2 ] && echo value; }; got=\$(retry try); echo \"<\$got>\""
  [ "${lines[-1]}" = '<value>' ]
}

@test "stop is one line and code 1" {
  step "stop 'no such thing: make it'; echo never"
  [ "$status" -eq 1 ]
  [ "${#lines[@]}" -eq 1 ]
  [[ "$output" == *'trainshed: FAILED: no such thing: make it' ]]
}

@test "what nobody foresaw names its line" {
  step "false"
  [ "$status" -eq 1 ]
  [[ "$output" == *'FAILED: step.sh line 3: false' ]]
}

@test "an unset name is a failure and not an empty text" {
  step "echo \"\$settings_regoin\""
  [ "$status" -ne 0 ]
  [[ "$output" == *settings_regoin* ]]
}

@test "a step without settings says what to run" {
  rm /opt/trainshed/settings.sh
  step "echo never"
  [ "$status" -eq 1 ]
  [[ "$output" == *'settings.sh is not there: run '*'on_init_complete.sh' ]]
}

@test "nothing of the caller's environment is believed" {
  printf '. "%s/lifecycle/lib.sh"\necho "$HOME $PATH"\n' "$REPOSITORY" >"$work/step.sh"
  run env HOME=/nowhere PATH=/nowhere:/usr/bin:/bin bash "$work/step.sh"
  [[ "$output" != */nowhere* && "$output" == *" /usr/local/sbin:"* ]]
}

@test "the log's time is UTC whatever the caller's zone is" {
  printf '. "%s/lifecycle/lib.sh"\nsay here\n' "$REPOSITORY" >"$work/step.sh"
  before=$(date -u +%FT%H:%M)
  run env -i TZ=Tokyo-9 bash "$work/step.sh"
  [[ "$output" == "$before"*Z\ trainshed:\ here || "$output" == "$(date -u +%FT%H:%M)"*Z\ trainshed:\ here ]]
}
