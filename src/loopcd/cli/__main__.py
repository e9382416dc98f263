from loopcd.cli import main

main()
