// The real helm, from its own module, as a test peer.
package main

import (
	"fmt"
	"os"

	"helm.sh/helm/v4/pkg/cmd"
)

func main() {
	root, err := cmd.NewRootCmd(os.Stdout, os.Args[1:], cmd.SetupLogging)
	if err == nil {
		err = root.Execute() // prints the error
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
	if err != nil {
		os.Exit(1)
	}
}
