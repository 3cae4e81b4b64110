// Command h2spec runs every case of h2spec against an HTTP/2 server on the loopback. It is h2spec's own command with fewer
// flags, because that one is built with dependencies that nothing pins.
//
//	h2spec PORT
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/summerwind/h2spec"
	"github.com/summerwind/h2spec/config"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: h2spec PORT")
		os.Exit(2)
	}
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "h2spec:", err)
		os.Exit(2)
	}
	passed, err := h2spec.Run(&config.Config{
		Host:         "127.0.0.1",
		Port:         port,
		Path:         "/",
		Timeout:      2 * time.Second,
		MaxHeaderLen: 4000,
		Strict:       true,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "h2spec:", err)
	}
	if !passed || err != nil {
		os.Exit(1)
	}
}
