// Go's crypto/tls as client or server of X25519MLKEM768:
//
//	hybrid client ADDRESS COUNT       makes so many connections, asks for a page on each
//	hybrid server CERT KEY COUNT      prints its port, then answers so many
package main

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Every other handshake begins with a share of another group.
func groups(at int) []tls.CurveID {
	if at%2 == 1 {
		return []tls.CurveID{tls.X25519, tls.X25519MLKEM768}
	}
	return []tls.CurveID{tls.X25519MLKEM768}
}

func client(address string, count int) {
	for at := range count {
		config := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, CurvePreferences: groups(at)}
		connection, err := tls.Dial("tcp", address, config)
		must(err)
		if group := connection.ConnectionState().CurveID; group != tls.X25519MLKEM768 {
			must(fmt.Errorf("group %v", group))
		}
		fmt.Fprint(connection, "GET /page HTTP/1.0\r\n\r\n")
		answer, _ := io.ReadAll(connection)
		if !strings.Contains(string(answer), "whole") {
			must(fmt.Errorf("answer %q", answer))
		}
		connection.Close()
	}
}

func server(cert, key string, count int) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	must(err)
	config := &tls.Config{Certificates: []tls.Certificate{pair}, CurvePreferences: groups(0), MinVersion: tls.VersionTLS13}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	must(err)
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	for range count {
		connection, err := listener.Accept()
		must(err)
		reader := bufio.NewReader(connection)
		for line := "?"; strings.TrimSpace(line) != ""; {
			line, err = reader.ReadString('\n')
			must(err)
		}
		fmt.Fprint(connection, "HTTP/1.0 200 OK\r\n\r\nwhole\n")
		connection.Close()
	}
}

func main() {
	count, err := strconv.Atoi(os.Args[len(os.Args)-1])
	must(err)
	if os.Args[1] == "client" {
		client(os.Args[2], count)
	} else {
		server(os.Args[2], os.Args[3], count)
	}
}
