# What Go fetches on the way can be refused for a moment. Sourced; $GO is the Go to call.
go_thrice() { # ARGUMENT…: of go
    local pause
    for pause in 5 15 0; do
        ! "$GO" "$@" || return 0
        sleep $pause
    done
    return 1
}
