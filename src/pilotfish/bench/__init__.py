"""How fast it is: measurements of passes and of whole generations, as figures that state what they were taken on."""
