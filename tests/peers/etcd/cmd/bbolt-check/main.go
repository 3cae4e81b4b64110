// bbolt's own check of a file: every page is in one place, and every tree in order.
package main

import (
	"fmt"
	"os"

	bolt "go.etcd.io/bbolt"
)

func main() {
	db, err := bolt.Open(os.Args[1], 0o600, &bolt.Options{ReadOnly: true, PreLoadFreelist: true})
	if err == nil {
		err = db.View(func(tx *bolt.Tx) error {
			for problem := range tx.Check() {
				err = problem
			}
			return err
		})
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("OK")
}
